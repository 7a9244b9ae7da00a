"""Secrets in texts and in names of files.

`scan` finds them in a text, `Scanner` all but those that a setting allows, `ScanningReader` in a
stream of any length, and `casfs.scanner.private_names` tells the files that hold nothing else.
"""

from casfs.scanner.findings import MAX_SECRET_BYTES, Finding, Scanner, fingerprint, scan
from casfs.scanner.reader import ScanningReader

__all__ = ["MAX_SECRET_BYTES", "Finding", "Scanner", "ScanningReader", "fingerprint", "scan"]
