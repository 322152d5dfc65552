"""Whole experiments, as functions that return frozen configs."""

from esper.recipes.catalogue import RECIPES, recipe
from esper.recipes.config import FleetConfig, Recipe

__all__ = ["RECIPES", "FleetConfig", "Recipe", "recipe"]
