// What a chart draws: functions of its data, of a context, of colours and of scales.

import { ticks } from "./axes.js";

/** Ground, ticks and their texts; or the names of lanes. */
export function axes(chart, c, colour, s) {
  const { p } = s;
  c.fillStyle = colour("plot");
  c.fillRect(p.x, p.y, p.w, p.h);
  c.lineWidth = 1;
  c.strokeStyle = colour("rule");
  c.fillStyle = colour("quiet");
  c.textBaseline = "top";
  c.textAlign = "center";
  for (const v of ticks(...chart.view.x, p.w / 90)) {
    stroke(c, s.x(v), p.y, s.x(v), p.y + p.h);
    c.fillText(chart.options.x(v), Math.min(s.x(v), chart.width - 16), p.y + p.h + 6);
  }
  c.textBaseline = "middle";
  c.textAlign = "right";
  if (chart.data.lanes) return lanes(chart, c, colour, s);
  for (const v of ticks(...chart.view.y, p.h / 44, chart.options.binary)) {
    stroke(c, p.x, s.y(v), p.x + p.w, s.y(v));
    c.fillText(chart.options.y(v), p.x - 6, s.y(v));
  }
}

function lanes(chart, c, colour, s) {
  chart.data.lanes.forEach((lane, i) => {
    stroke(c, s.p.x, s.y(i), s.p.x + s.p.w, s.y(i));
    c.fillStyle = colour(lane.quiet ? "quiet" : "text");
    c.fillText(fitted(c, lane.text, s.p.x - 8), s.p.x - 6, s.y(i + 0.5));
  });
}

/** The boxes that are in view, with their titles where there is room. */
export function boxes(chart, c, colour, s) {
  const { p } = s;
  for (const box of chart.data.boxes) {
    const [x, y, w, h] = chart.rect(box, s);
    if (x > p.x + p.w || x + w < p.x || y > p.y + p.h || y + h < p.y) continue;
    c.fillStyle = colour(box.kind);
    c.fillRect(x, y, w, h);
    if (w > 4 && h > 4) {
      c.strokeStyle = colour("plot");
      c.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    }
    if (w > 46 && h > 13) {
      c.fillStyle = colour("on-kind");
      c.textAlign = "left";
      const from = Math.max(x, p.x);
      c.fillText(fitted(c, chart.options.title(box), Math.min(x + w, p.x + p.w) - from - 8), from + 4, y + h / 2);
    }
  }
}

/** Marks over everything else. */
export function lines(chart, c, colour, s) {
  const { p } = s;
  c.textBaseline = "bottom";
  for (const line of chart.data.lines) {
    c.strokeStyle = colour(line.kind);
    c.fillStyle = colour(line.kind);
    c.lineWidth = 1.5;
    c.setLineDash(line.axis === "x" ? [4, 3] : []);
    if (line.axis === "x") {
      const x = s.x(line.at);
      if (x < p.x || x > p.x + p.w) continue;
      stroke(c, x, p.y, x, p.y + p.h);
      c.textAlign = x > p.x + p.w / 2 ? "right" : "left";
      c.fillText(line.text, x, p.y - 1);
    } else {
      const y = s.y(line.at);
      if (y < p.y || y > p.y + p.h) continue;
      stroke(c, p.x, y, p.x + p.w, y);
      c.textAlign = "right";
      plate(c, colour, line.text, p.x + p.w - 4, y - 2);
      c.fillStyle = colour(line.kind);
      c.fillText(line.text, p.x + p.w - 4, y - 2);
    }
  }
  c.setLineDash([]);
  c.lineWidth = 1;
}

/** A quiet ground for a text that stands on boxes. */
function plate(c, colour, text, right, bottom) {
  const w = c.measureText(text).width;
  c.fillStyle = colour("plot");
  c.fillRect(right - w - 4, bottom - 13, w + 8, 14);
}

function stroke(c, x0, y0, x1, y1) {
  c.beginPath();
  c.moveTo(Math.round(x0) + 0.5, Math.round(y0) + 0.5);
  c.lineTo(Math.round(x1) + 0.5, Math.round(y1) + 0.5);
  c.stroke();
}

/** The text, or as much of it as fits, with an ellipsis. */
function fitted(c, text, width) {
  if (width < 12) return "";
  if (c.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (c.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low === 0 ? "" : `${text.slice(0, low)}…`;
}
