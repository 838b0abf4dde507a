"""The seven multiple-choice tasks of MLVU."""

from __future__ import annotations

# task -> stem of its JSON file and name of its folder of videos
TASKS = {
    "plotQA": "1_plotQA",
    "needle": "2_needle",
    "ego": "3_ego",
    "count": "4_count",
    "order": "5_order",
    "anomaly_reco": "6_anomaly_reco",
    "topic_reasoning": "7_topic_reasoning",
}
