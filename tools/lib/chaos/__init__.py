"""Chaos on one machine: small real trainers on many local daemons, and a fault every half minute.

tools/chaos builds what is needed and runs `python -m chaos`. Read faults.py for what can happen, run.py for the course of
it, summary.py for what the figures mean.
"""
