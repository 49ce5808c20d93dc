from .elementwise import adaptive_dropout as adaptive_dropout
from .elementwise import dropconnect_linear as dropconnect_linear
from .elementwise import dropout as dropout
from .elementwise import fast_dropout_linear as fast_dropout_linear
from .elementwise import training_factor as training_factor
