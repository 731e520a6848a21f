"""The records that commands write and read: each kind is a class, from which validation and JSON Schema follow.

A result file has one record per line. Start reading at `Record` in record.py, the base class of all kinds, then read
collective.py. `as_dict` and `from_dict` convert to and from decoded JSON lines; `make_json_schema` describes all kinds.
"""

from hpccoll.records.barriers import (
    BarrierCost,
    BarrierKey,
    BarrierRecord,
    BarrierSummaryRecord,
    InjectedDelay,
    NodeLateness,
    RankLateness,
)
from hpccoll.records.collective import (
    FEWEST_FOR_P99,
    SEND_RECV,
    BenchSummaryRecord,
    CaseKey,
    CollectiveCase,
    CollectiveRecord,
    Staging,
    StartMethod,
    StopReason,
    TimeSummary,
)
from hpccoll.records.comparisons import (
    ComparedOperationRecord,
    ComparedRowRecord,
    ComparedTimesRecord,
    CompareSummaryRecord,
    GuidelineRecord,
    GuidelineVerdict,
    StopCause,
    Verdict,
)
from hpccoll.records.crash import CallGroup, CrashRecord, FirstDisagreement, RankState, RecordedOperation
from hpccoll.records.estimates import EstimateRecord
from hpccoll.records.json_schema import make_json_schema
from hpccoll.records.nodes import (
    FaultEntry,
    FindingRecord,
    LabRecord,
    PreflightNodeRecord,
    PreflightPairRecord,
    PreflightSummaryRecord,
    ScalingPoint,
    ScalingRecord,
)
from hpccoll.records.parity import ParityRecord, ParitySummaryRecord, Quantity
from hpccoll.records.plans import (
    DemoRecord,
    ProvenPlanRecord,
    PublishedScheduleRecord,
    ScheduleRecord,
    SelectionRecord,
    SimulatedPlanRecord,
)
from hpccoll.records.profiles import (
    ProfileFindingRecord,
    ProfilePredictionRecord,
    ProfileRecord,
    ProfileSite,
    ProfileSiteRecord,
    RankTimes,
)
from hpccoll.records.record import SCHEMA, Record, explain_validation_error
from hpccoll.records.run import RunRecord, Versions
from hpccoll.records.training import (
    AccountEntry,
    AllocatedBytes,
    TrainAccountRecord,
    TrainCompareRecord,
    TrainRecoveryRecord,
    TrainStepRecord,
    TrainSummaryRecord,
)

__all__ = [
    "FEWEST_FOR_P99", "SCHEMA", "SEND_RECV", "AccountEntry", "AllocatedBytes", "BarrierCost", "BarrierKey",
    "BarrierRecord", "BarrierSummaryRecord", "BenchSummaryRecord", "CallGroup", "CaseKey", "CollectiveCase",
    "CollectiveRecord", "CompareSummaryRecord", "ComparedOperationRecord", "ComparedRowRecord", "ComparedTimesRecord",
    "CrashRecord", "DemoRecord", "EstimateRecord", "FaultEntry", "FindingRecord", "FirstDisagreement",
    "GuidelineRecord", "GuidelineVerdict", "InjectedDelay", "LabRecord", "NodeLateness", "ParityRecord",
    "ParitySummaryRecord", "PreflightNodeRecord", "PreflightPairRecord", "PreflightSummaryRecord",
    "ProfileFindingRecord", "ProfilePredictionRecord", "ProfileRecord", "ProfileSite", "ProfileSiteRecord",
    "ProvenPlanRecord", "PublishedScheduleRecord", "Quantity", "RankLateness", "RankState", "RankTimes", "Record",
    "RecordedOperation", "RunRecord", "ScalingPoint", "ScalingRecord", "ScheduleRecord", "SelectionRecord",
    "SimulatedPlanRecord", "Staging", "StartMethod", "StopCause", "StopReason", "TimeSummary", "TrainAccountRecord",
    "TrainCompareRecord", "TrainRecoveryRecord", "TrainStepRecord", "TrainSummaryRecord", "Verdict", "Versions",
    "explain_validation_error", "make_json_schema",
]  # fmt: skip
