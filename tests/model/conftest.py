"""Property tests here say nothing about speed: a slow machine must not fail them."""

from hypothesis import settings

settings.register_profile("model", deadline=None)
settings.load_profile("model")
