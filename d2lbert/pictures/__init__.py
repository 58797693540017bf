"""Pictures of what a model learnt: figures, and one page that shows it all."""
