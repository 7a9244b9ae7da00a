"""`python -m casfs`: how background processes are started."""

from casfs.cli import main

main()
