"""`casfs` as on a kernel before Linux 6.9, which sends no request again; run before the command:

python tests/support/older.py python -m casfs …
"""

from __future__ import annotations

import sys

from casfs.cli.main import main
from casfs.fuse.kernel import init_handshake, protocol

if __name__ == "__main__":
    init_handshake.WANTED &= ~protocol.HAS_RESEND
    sys.argv[1:] = sys.argv[sys.argv.index("casfs") + 1 :]
    main()
