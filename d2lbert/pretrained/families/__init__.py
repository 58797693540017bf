"""Families of pretrained models: arguments, tensor names, sizes."""
