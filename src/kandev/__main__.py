"""`python -m kandev`: the same as the command `kandev`."""

from kandev.cli.__main__ import main

if __name__ == "__main__":
    main()
