"""The objectives of `pretrain`, by the values of the setting `objective`."""
from d2lbert.objectives.generative import CLM, Denoise
from d2lbert.objectives.mlm import MLM, MLMAndNSP, MLMAndSBO, MLMAndSOP

OBJECTIVES = {'mlm+nsp': MLMAndNSP, 'mlm+sop': MLMAndSOP, 'mlm': MLM,
              'span': MLMAndSBO, 'denoise': Denoise, 'clm': CLM}
