// Two comforts of the guards' page, which works without them: one tick for all guards, and progress that moves.
"use strict";

const POLL_MILLISECONDS = 2000;

function tickAll() {
    const all = document.getElementById("bg-all");
    if (!all) {
        return;
    }
    const boxes = [...document.querySelectorAll('.bg-table input[name="guard"]')];
    const show = () => {
        const ticked = boxes.filter((box) => box.checked).length;
        all.checked = ticked === boxes.length;
        all.indeterminate = ticked > 0 && ticked < boxes.length;
    };
    all.closest("label").hidden = false;
    all.addEventListener("change", () => boxes.forEach((box) => { box.checked = all.checked; }));
    boxes.forEach((box) => box.addEventListener("change", show));
    show();
}

// Progress is shown in its place; when a guard is done, the page is asked for anew, for all of its line may differ.
async function follow() {
    const busy = [...document.querySelectorAll("tr[data-guard]")].filter((line) => line.querySelector(".bg-busy"));
    if (!busy.length) {
        return;
    }
    const response = await fetch(document.querySelector("[data-progress]").dataset.progress);
    if (!response.ok) {
        return;
    }
    const tasks = new Map((await response.json()).tasks.map((task) => [task.guard, task]));
    for (const line of busy) {
        const task = tasks.get(line.dataset.guard);
        if (!task || !task.busy) {
            window.location.reload();
            return;
        }
        if (task.total) {
            const bar = line.querySelector("progress");
            bar.max = task.total;
            bar.value = task.done;
        }
    }
    window.setTimeout(follow, POLL_MILLISECONDS);
}

tickAll();
window.setTimeout(follow, POLL_MILLISECONDS);
