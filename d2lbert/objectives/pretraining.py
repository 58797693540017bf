"""The objectives of `pretrain`, by the values of the setting `objective`."""
from d2lbert.objectives.clm import CLM
from d2lbert.objectives.denoising import Denoise
from d2lbert.objectives.mlm import MLM, MLMAndSBO
from d2lbert.objectives.mlm_nsp import MLMAndNSP, MLMAndSOP

OBJECTIVES = {'mlm+nsp': MLMAndNSP, 'mlm+sop': MLMAndSOP, 'mlm': MLM,
              'span': MLMAndSBO, 'denoise': Denoise, 'clm': CLM}
