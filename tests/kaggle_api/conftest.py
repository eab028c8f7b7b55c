import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the loopback server is code of the tests, not of the project

from fake_kaggle.fixtures import client, home, kaggle, said

__all__ = ["client", "home", "kaggle", "said"]
