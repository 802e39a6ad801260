// The client: all operations, and methods that combine several calls.
import { type FollowAlertsParameters, Operations } from "./operations.js";
import type { RequestOptions } from "./request.js";
import type { ServerEvent } from "./streams.js";
import type { AlertView, CrawlView, VideoView } from "./types.js";

/** Options of `waitForCrawl` and `waitForVideo`. */
export interface WaitOptions<View> extends RequestOptions {
  /**
   * A function that the client calls with the crawl or video at the start, and at most twice per
   * second after a change. If the function returns a promise, the client waits for it.
   */
  onProgress?: (view: View) => void | Promise<void>;
}

/** A client of a facecrawl service.
 *
 * ```ts
 * const client = new Client({ baseUrl: "http://127.0.0.1:8080" });
 * const { faces } = await client.detectFaces("https://example.org/portrait.jpg");
 * ```
 */
export class Client extends Operations {
  /**
   * Yields the alerts of a collection as they are created. If the connection is lost, the client connects again and
   * continues after the last alert. Without `after`, the stream begins with the alerts that are
   * created after the call.
   */
  override async *followAlerts(
    parameters: FollowAlertsParameters = {},
    options?: RequestOptions,
  ): AsyncGenerator<ServerEvent<AlertView, "alert">> {
    let { after } = parameters;
    if (after === undefined) {
      // Otherwise alerts could be missed if the connection is lost before the first alert.
      const { alerts } = await this.listAlerts({ ...parameters, limit: 1 }, options);
      after = alerts[0]?.sequence ?? 0;
    }
    yield* super.followAlerts({ ...parameters, after }, options);
  }

  /**
   * Waits until a crawl has ended and returns it. Its `state` is `completed`, `cancelled` or
   * `failed`.
   */
  waitForCrawl(id: string, options: WaitOptions<CrawlView> = {}): Promise<CrawlView> {
    return lastOf(this.followCrawl(id, options), options);
  }

  /**
   * Waits until a video has ended and returns it. Its `state` is `completed`, `cancelled` or
   * `failed`.
   */
  waitForVideo(id: string, options: WaitOptions<VideoView> = {}): Promise<VideoView> {
    return lastOf(this.followVideo(id, options), options);
  }
}

async function lastOf<View>(
  events: AsyncIterable<ServerEvent<View>>,
  { onProgress }: WaitOptions<View>,
): Promise<View> {
  let last: View | undefined;
  for await (const { data } of events) {
    last = data;
    await onProgress?.(data);
  }
  // The stream ends only after its last event. It fails if the connection cannot be restored.
  return last as View;
}
