"""`python -m casfs`: how background processes are started."""

from casfs.cli.main import main

main()
