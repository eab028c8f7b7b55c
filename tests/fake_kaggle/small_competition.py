"""A small competition and short timeouts for tests of the client."""

from competition.kaggle.archive import UnpackRules
from competition.kaggle.client import RetryPolicy

FILES = {
    "sample_submission.csv": b"id,label\na,0\nb,0\n",
    "train/01.tfrec": bytes(range(256)) * 3000,
    "test/01.tfrec": bytes(reversed(range(256))) * 3000,
}
QUICK = RetryPolicy(max_attempts=3, first_wait=0.05, longest_wait=3.0, stall=8.0)
RULES = UnpackRules(max_ratio=200)
