"""The lab: paired, resumable experiments. Needs ``contdrop[lab]``."""
