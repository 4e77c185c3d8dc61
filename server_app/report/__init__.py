"""The run report: one self-contained page about what a run learned and what it cost in privacy."""

from server_app.report.console import summary_table
from server_app.report.data import ReportError, Run, load_run
from server_app.report.page import REPORT_NAME, render_report, write_report

__all__ = ["REPORT_NAME", "ReportError", "Run", "load_run", "render_report", "summary_table", "write_report"]
