"""Figures of a model, and an HTML page that shows what a model learnt."""
