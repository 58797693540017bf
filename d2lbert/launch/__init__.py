"""Run a job of several processes, on this machine or over ssh."""
