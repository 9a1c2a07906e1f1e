"""Screenshots compared with stored ones, in a font of our own: the fonts of a machine make no difference.

Each letter of that font is a box of one width, so lines break at the same words everywhere. Pictures are stored at a
quarter of their size; two are compared by tiles of 16 pixels of the page.
"""

from __future__ import annotations

import base64
import functools
import io
from pathlib import Path

import numpy as np
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from PIL import Image

STORED = Path(__file__).parent / "pictures"
#: More tiles than this that look different are another layout.
TOLERATED = 12
#: A tile looks different from this on, of 255 in one of its colours.
_VISIBLE = 20
_SCALE, _TILE = 4, 4

_USE = """async font => {
    const bytes = Uint8Array.from(atob(font), letter => letter.charCodeAt(0));
    document.fonts.add(await new FontFace("Boxes", bytes.buffer).load());
    const style = new CSSStyleSheet();
    style.replaceSync("* { font-family: Boxes !important; transition: none !important; }");
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, style];
    await document.fonts.ready;
}"""


@functools.cache
def boxes() -> str:
    """The font, in base64: a box for each character but the spaces."""
    pen, nothing = TTGlyphPen(None), TTGlyphPen(None)
    corners = [(60, 0), (60, 560), (480, 560), (480, 0)]
    pen.moveTo(corners[0])
    for corner in corners[1:]:
        pen.lineTo(corner)
    pen.closePath()
    builder = FontBuilder(1000)
    builder.setupGlyphOrder([".notdef", "space"])
    builder.setupCharacterMap({code: "space" if chr(code).isspace() else ".notdef" for code in range(0x20, 0x2FFF)})
    builder.setupGlyf({".notdef": pen.glyph(), "space": nothing.glyph()})
    builder.setupHorizontalMetrics({".notdef": (540, 60), "space": (300, 0)})
    builder.setupHorizontalHeader(ascent=900, descent=-250)
    builder.setupNameTable({"familyName": "Boxes", "styleName": "Regular"})
    builder.setupOS2(sTypoAscender=900, sTypoDescender=-250, usWinAscent=900, usWinDescent=250)
    builder.setupPost()
    file = io.BytesIO()
    builder.font.save(file)
    return base64.b64encode(file.getvalue()).decode()


def picture(page) -> Image.Image:
    """The whole page in boxes, as it is stored."""
    page.evaluate(_USE, boxes())
    screenshot = page.screenshot(full_page=True, animations="disabled")
    return Image.open(io.BytesIO(screenshot)).convert("RGB").reduce(_SCALE)


def store(found: Image.Image, file: Path, colours: int = 128) -> None:
    """Write a picture, small in bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    found.quantize(colours, dither=Image.Dither.NONE).save(file, optimize=True)


def differences(found: Image.Image, file: Path) -> int:
    """How many tiles look different, those included that only one of the pictures has."""
    one, other = (np.asarray(each.convert("RGB").reduce(_TILE), dtype=int) for each in (found, Image.open(file)))
    height, width = (min(one.shape[axis], other.shape[axis]) for axis in (0, 1))
    different = np.abs(one[:height, :width] - other[:height, :width]).max(axis=2) >= _VISIBLE
    return int(different.sum()) + sum(each.shape[0] * each.shape[1] - height * width for each in (one, other))
