"""Statistics of paired runs: comparisons, intervals, corrections and power. Needs numpy and scipy only.

One sign everywhere: a difference is **reference - other**. Values are errors, so negative means that the reference is
better. A figure that does not exist (the spread of one run) is NaN; one that was not asked for is None.

- ``compare_paired``, ``adjusted``: two methods run by run, and p-values corrected for the number of such comparisons.
- ``two_way_interval``: a difference over runs and test examples.
- ``mcnemar``: two models on the same test examples.
- ``ranks``, ``compare_ranks``: several methods on several data sets.
- ``decide``, ``decide_all``: a verdict after as few paired runs as the differences allow.
- ``power``, ``minimum_detectable``, ``runs_needed``: what a number of runs can show.
"""

from .intervals import bca_interval as bca_interval
from .intervals import t_interval as t_interval
from .intervals import two_way_interval as two_way_interval
from .paired import Comparison as Comparison
from .paired import Summary as Summary
from .paired import adjusted as adjusted
from .paired import compare_paired as compare_paired
from .paired import summary as summary
from .power import minimum_detectable as minimum_detectable
from .power import power as power
from .power import runs_needed as runs_needed
from .power import sd_interval as sd_interval
from .ranks import RankComparison as RankComparison
from .ranks import Ranks as Ranks
from .ranks import compare_ranks as compare_ranks
from .ranks import ranks as ranks
from .sequential import Decision as Decision
from .sequential import Sequential as Sequential
from .sequential import decide as decide
from .sequential import decide_all as decide_all
from .significance import McNemar as McNemar
from .significance import holm as holm
from .significance import mcnemar as mcnemar
from .significance import signed_rank_test as signed_rank_test
from .significance import t_test as t_test
from .significance import tost as tost
