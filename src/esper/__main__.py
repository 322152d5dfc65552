"""Run the command line as `python -m esper`."""

from esper.cli import main

if __name__ == "__main__":
    main()
