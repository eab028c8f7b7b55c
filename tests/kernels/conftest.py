from fake_kaggle.fixtures import client, home, kaggle, messages

__all__ = ["client", "home", "kaggle", "messages"]
