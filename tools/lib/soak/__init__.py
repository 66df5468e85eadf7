"""A soak on one machine: daemons that stay and daemons that come and go, with real training processes, for as long as
one likes. At its end it says whether memory, descriptors and the time to an answer stayed the same.

tools/soak builds what is needed and runs `python -m soak`. churn.py has the events, samples.py the measurements, and
verdicts.py the meaning of "flat".
"""
