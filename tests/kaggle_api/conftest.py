import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # makes the package fake_kaggle importable

from fake_kaggle.fixtures import client, home, kaggle, messages

__all__ = ["client", "home", "kaggle", "messages"]
