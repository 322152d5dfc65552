"""Recipes of complete training runs, exams, and the settings they are held in."""

from esper.recipes.catalogue import RECIPES, recipe, recipe_names
from esper.recipes.config import FleetConfig, Recipe

__all__ = ["RECIPES", "FleetConfig", "Recipe", "recipe", "recipe_names"]
