// What `kernelLsp/jobChanged` and `kernelLsp/runEvent` told, for whoever shows it.
import * as vscode from "vscode";
import type { JobParams, RunEventParams } from "./protocol";

export class JobStore implements vscode.Disposable {
  private readonly jobs = new Map<string, JobParams>();
  private readonly changed = new vscode.EventEmitter<JobParams | undefined>();
  private readonly happened = new vscode.EventEmitter<RunEventParams>();
  /** A job changed; undefined when all are gone with the server. */
  readonly onChange = this.changed.event;
  readonly onRunEvent = this.happened.event;

  /** Those under way. */
  get active(): JobParams[] {
    return [...this.jobs.values()];
  }

  hear(job: JobParams): void {
    if (job.state === "queued" || job.state === "running") {
      this.jobs.set(job.job, job);
    } else {
      this.jobs.delete(job.job);
    }
    this.changed.fire(job);
  }

  hearEvent(event: RunEventParams): void {
    this.happened.fire(event);
  }

  clear(): void {
    this.jobs.clear();
    this.changed.fire(undefined);
  }

  dispose(): void {
    this.changed.dispose();
    this.happened.dispose();
  }
}
