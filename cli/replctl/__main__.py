"""`python -m replctl`."""

from replctl.main import main

if __name__ == "__main__":
    main()
