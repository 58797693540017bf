"""Jobs of several processes, here or over ssh: launcher, guards, servers."""
