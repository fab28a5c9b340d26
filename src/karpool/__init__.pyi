from karpool.api.answers import Answer as Answer
from karpool.api.answers import KarpoolError as KarpoolError
from karpool.api.cluster import CountAnswer as CountAnswer
from karpool.api.cluster import ExplainAnswer as ExplainAnswer
from karpool.api.cluster import FitAnswer as FitAnswer
from karpool.api.cluster import OpenCluster as OpenCluster
from karpool.api.cluster import PlanAnswer as PlanAnswer
from karpool.api.cluster import UsageAnswer as UsageAnswer
from karpool.api.cluster import WhatIfAnswer as WhatIfAnswer
from karpool.api.cluster import open_cluster as open_cluster
from karpool.api.simulation import SimulationAnswer as SimulationAnswer
from karpool.api.simulation import simulate as simulate

__version__: str
