"""Recipes that train the bundled models and measure the published figures again."""
