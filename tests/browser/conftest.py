"""Chromium."""

from tests.browser_tabs import chromium as chromium
