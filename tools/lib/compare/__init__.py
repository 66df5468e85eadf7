"""tools/compare: the same training by several methods, and their figures side by side.

Options are in options.py, one trainer in trainer.py, one method's run in run.py, and what is said of it in summary.py.
"""
