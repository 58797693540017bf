"""The families of pretrained models: config.json, tensor names, nets."""
