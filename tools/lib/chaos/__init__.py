"""Chaos on one machine: small real trainers on many local daemons, and a fault every half minute.

tools/chaos builds what is needed and runs `python -m chaos`. faults.py has the faults, run.py the course of a run, and
summary.py the meaning of the figures.
"""
