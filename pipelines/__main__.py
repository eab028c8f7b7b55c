"""`python -m pipelines VERB`: the `goldfold` command without installation."""

from pipelines.terminal.cli import main

if __name__ == "__main__":
    main()
