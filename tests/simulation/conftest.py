"""Simulations log a great deal, and nobody reads it here: writing it would take most of the time."""

import logging

import pytest
import structlog


@pytest.fixture(autouse=True, scope="package")
def quiet():
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.configure(**before)
