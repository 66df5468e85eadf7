"""A soak on one machine: daemons that stay and daemons that come and go, with real training processes, for as long as
one likes; at its end it says whether memory, descriptors and the time to an answer stayed what they were.

tools/soak builds what is needed and runs `python -m soak`. Read churn.py for what happens, samples.py for what is
looked at, verdicts.py for what "flat" means.
"""
