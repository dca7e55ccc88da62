"""The plots, one file each."""

from .building import BUILDING
from .contest import CONTEST
from .garden import GARDEN
from .journey import JOURNEY
from .learning import LEARNING
from .lost import LOST
from .mistake import MISTAKE
from .mystery import MYSTERY
from .neighbour import NEIGHBOUR
from .newcomer import NEWCOMER
from .quarrel import QUARREL
from .rescue import RESCUE
from .secret import SECRET_KEPT
from .storm import STORM_NIGHT
from .surprise import SURPRISE
from .trade import TRADE

SCHEMES = (
    BUILDING,
    CONTEST,
    GARDEN,
    JOURNEY,
    LEARNING,
    LOST,
    MISTAKE,
    MYSTERY,
    NEIGHBOUR,
    NEWCOMER,
    QUARREL,
    RESCUE,
    SECRET_KEPT,
    STORM_NIGHT,
    SURPRISE,
    TRADE,
)
