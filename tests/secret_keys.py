"""A secret key for tests, as the environment gives it and as a Store takes it."""

from app.store.credentials.sealing import parse_keys
from tests.harness.stack import SECRET_KEY

KEY = SECRET_KEY
KEYS = parse_keys(KEY, "tests")
