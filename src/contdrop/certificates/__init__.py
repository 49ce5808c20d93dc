from .holdout import SCALES as SCALES
from .holdout import Bound as Bound
from .holdout import GaussianNetwork as GaussianNetwork
from .holdout import HoldoutCertificate as HoldoutCertificate
from .holdout import PacBayesCertificate as PacBayesCertificate
from .holdout import holdout_certificate as holdout_certificate
from .holdout import pac_bayes_certificate as pac_bayes_certificate
