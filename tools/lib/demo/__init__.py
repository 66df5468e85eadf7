"""The demonstration: four daemons on this machine train one model together, lose a node and gain another.

tools/demo builds what is needed and runs `python -m demo`. Read scenario.py for the story, trainer.py for what a user
of the SDK writes.
"""
