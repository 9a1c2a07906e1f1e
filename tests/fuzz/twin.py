"""The other process, without bloomguard: each line that it reads is a call, each that it writes is the answer."""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    from .databases import set_up

    set_up(json.loads(os.environ["BLOOMGUARD_FUZZ_TWIN"]), guarded=False)

    from .peer import Peer

    peer = Peer()
    for line in sys.stdin:
        name, arguments = json.loads(line)
        found = peer.plain.rows() if name == "rows" else getattr(peer, name)(*arguments)
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    peer.close()


if __name__ == "__main__":
    main()
