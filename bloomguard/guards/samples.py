"""What a project's own functions make of some texts: two versions of one that differ there make different keys.

Nobody can see from outside what a function does. But most changes show in case, accents, spaces, punctuation, numbers
and lengths. The samples have no character that a newer Unicode treats otherwise, so that two versions of Python agree.
"""

from __future__ import annotations

import datetime
import hashlib
import uuid
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from django.db import DatabaseError, InterfaceError

from .keys import OF_THE_TEXT

SAMPLES = (
    "", " ", "a", "A", " a ", "a  b", "a b", "a\tb\n", "Ab-Cd_eF", "aBc", "ab--cd", "-a-", "_a", "a.b", "a.", "a,b;c",
    "a/b", "a\\b", "a%20b", "a+b", "a&b=c", "a'b", '"a"', "<a>", "#a", "@a", "(a)", "a:b", "a~b", "a*b?", "\u00e1",
    "A\u0301",
    "\u00c5ngstr\u00f6m", "stra\u00dfe", "\u0130I\u0131i", "\uff21\uff11", "\ufb01x", "\u03a3\u03c2", "\u0401\u0436",
    "\u4e2d\u6587", "\u3000a", "\u200ba", "\xa0a", "\u2013a\u2019", "0", "7", "007", "-7", "+7", "7.0", "1,000", "1e3",
    "0x7", "a7", "7a", "+49 (30) 123-456", "978-3-16-148410-0", "User.Name+tag@Example.com", "https://www.Example.com/A/?b#c",
    "2024-02-29", "00000000-0000-4000-8000-00000000000A", "{0000000000004000800000000000000b}", "the-a", "a-2024",
    "0123456789" * 4, "abcdefghij" * 30,
)  # fmt: skip
#: Classes whose values have the same text in every process.
_PLAIN = (str, int, Decimal, uuid.UUID, datetime.date)
#: After these errors the function may work a moment later. After any other, it raises the same in every process.
_TEMPORARY = (OSError, DatabaseError, InterfaceError)


def fingerprint(functions: Iterable[Callable[[str], Any]]) -> str:
    """Return, in 16 digits, what the functions return, or raise, for the samples. Raises temporary errors."""
    found = hashlib.sha256()
    for function in functions:
        for text in SAMPLES:
            try:
                made = function(text)
            except _TEMPORARY:
                raise
            except Exception as error:
                made = None if isinstance(error, OF_THE_TEXT) else error
            shown = str(made) if isinstance(made, _PLAIN) else ""
            found.update(f"{type(made).__name__}:{len(shown)}:{shown}".encode(errors="surrogatepass"))
    return found.hexdigest()[:16]
