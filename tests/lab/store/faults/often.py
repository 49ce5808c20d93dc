"""Has jobs save their state often, in every process that imports this."""

from contdrop.lab.training import job

job.run.__kwdefaults__["checkpoint_seconds"] = 0.05
