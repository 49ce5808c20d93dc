"""Bounds on the error of a network with dropout that hold with a stated confidence; see docs/certificates.md."""

from .holdout import Bound as Bound
from .holdout import HoldoutCertificate as HoldoutCertificate
from .holdout import holdout_certificate as holdout_certificate
from .pac_bayes import SCALES as SCALES
from .pac_bayes import GaussianNetwork as GaussianNetwork
from .pac_bayes import PacBayesCertificate as PacBayesCertificate
from .pac_bayes import pac_bayes_certificate as pac_bayes_certificate
