from fake_kaggle.fixtures import client, home, kaggle, messages  # noqa: F401
